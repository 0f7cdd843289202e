"""A program that stands for an engine: it serves completions of a known speed and writes down what it was asked.

python fake_peer.py PORT LOG NAME SECONDS_A_TOKEN [start-seconds]

A line of LOG is "NAME PID first-words-of-the-prompt". It also starts a child of its own, as engines do, which must be
stopped and ended with it.
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, LOG, NAME, SECONDS = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])


class Answers(BaseHTTPRequestHandler):
    """Streams as many tokens as are asked for."""

    def log_message(self, format: str, *args: object) -> None:
        """It is quiet."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(LOG, "a") as log:
            log.write(f"{NAME} {child.pid} {asked['max_tokens']} {asked['prompt'][:40]}\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(asked["max_tokens"]):
            time.sleep(SECONDS)
            self.event({"choices": [{"text": "x", "finish_reason": None}]})
        usage = {"prompt_tokens": len(asked["prompt"].split()), "completion_tokens": asked["max_tokens"]}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: object) -> None:
        """One of the stream."""
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


if __name__ == "__main__":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(float(sys.argv[5]) if len(sys.argv) > 5 else 0)
    ThreadingHTTPServer(("127.0.0.1", PORT), Answers).serve_forever()
