// One worker's way through a step: every worker runs the same op list, takes pieces of each stage from a shared counter
// and meets the others at the end of the stage.
#pragma once

#include "exec.h"

namespace pelton {

constexpr int ATTEND_ROWS = 64;  // query rows of one sequence that share a pass over its KV blocks
constexpr int HEAD_ROWS = 32;    // logit rows that share a pass over the head's matrix

// What the cost rules (program/ops) count per element.
constexpr uint64_t NORM_FLOPS = 4, LAYER_NORM_FLOPS = 7, ACTIVATION_FLOPS = 20, TABLE_FLOPS = 60, SOFTMAX_FLOPS = 20,
                   SOFTCAP_FLOPS = 20, SLOPE_FLOPS = 2, CHOICE_FLOPS = 20;

struct Worker {
    Executable& x;
    const Step& step;
    int id;
    Tally& tally;
    size_t stage = 0;

    void run();

   private:
    template <class F>
    void parallel(int pieces, F work);

    float* at(const Slot& slot, int row = 0) const;
    float* scratch() const;
    Work& count(Kind kind, uint64_t flops, uint64_t read, uint64_t written);

    void embed(const OpRecord& op);
    void norm(const OpRecord& op);
    void linear(const OpRecord& op);
    void linear_panel(const OpRecord& op, size_t which, int panel);
    void multiply(const Matrix& matrix, int panel, int rows, float* out, size_t stride, Kind kind);
    void bias_strip(const OpRecord& op, size_t which, int panel, int rows, float* strip);
    void prepare_rows(const OpRecord& op, int rows, const int32_t* from);
    void elementwise(const OpRecord& op);
    void rope_table(const OpRecord& op);
    void rope(const OpRecord& op);
    void kv_write(const OpRecord& op);
    void rope_kv(const OpRecord& op);
    void store_token(const OpRecord& op, int token, const float* k, const float* v);
    KVView view(const OpRecord& op) const;
    void attend(const OpRecord& op);
    void attend_item(const OpRecord& op, const AttendItem& item);
    void attend_out(const OpRecord& op, const AttendItem& item, const float* states);
    void head(const OpRecord& op);
    void head_group(const OpRecord& op, int first, int rows);
    void trace(const OpRecord& op);
    uint64_t* traced(const OpRecord& op) const;
};

}  // namespace pelton
