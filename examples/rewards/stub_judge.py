"""Stands for a judge behind an OpenAI-compatible endpoint: `python3 examples/rewards/stub_judge.py [PORT]`.

It gives a point for each `=` in what it is asked, up to 10.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Judge(BaseHTTPRequestHandler):
    """Answers `POST /v1/chat/completions`."""

    def do_POST(self) -> None:
        """One verdict."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        points = min(10, asked["messages"][-1]["content"].count("="))
        body = json.dumps({"choices": [{"message": {"content": f"Points: {points}"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8901
    print(f"The stub judge is at http://127.0.0.1:{port}/v1", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Judge).serve_forever()
