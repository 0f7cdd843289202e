"""Retrieval: a few long passages, then a question about one of them, and a short answer."""

from pelton.measure.bench.workload import Sample, WorkloadOptions, rows_of

OUTPUT_LEN, PASSAGES = 64, 4
INSTRUCTION = "Answer the question from the passages below. If they do not tell, say that they do not.\n\n"


class RAG:
    """Natural Questions with their passages; four passages a request, some of them common to several requests."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        rows = options.pick(rows_of(options, "longtext/nq_rag_passages.jsonl", "question", "passage"))
        made = []
        for place, row in enumerate(rows):
            group = place // PASSAGES * PASSAGES
            near = [rows[(group + offset) % len(rows)] for offset in range(PASSAGES)]
            passages = "\n\n".join(f"[{number}] {one['passage']}" for number, one in enumerate(near, 1))
            text = f"{INSTRUCTION}{passages}\n\nQuestion: {row['question']}\n"
            made.append(Sample(options.output_len or OUTPUT_LEN, messages=({"role": "user", "content": text},)))
        return made
