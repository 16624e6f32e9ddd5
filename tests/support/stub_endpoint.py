"""An OpenAI-compatible endpoint whose answers a test gives."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class StubEndpoint:
    """Answers one request after the other, the last answer again and again; keeps what was asked."""

    def __init__(self, *answers):
        """`answers`: text, a message, or (status, body)."""
        self.answers, self.asked, self.keys = list(answers), [], []

    def answer(self, body):
        self.asked.append(body)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, tuple):
            return found
        message = found if isinstance(found, dict) else {"role": "assistant", "content": found}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}})


@contextmanager
def serving(*answers):
    """A served one, with its `url`."""
    stub = StubEndpoint(*answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            stub.keys.append(self.headers.get("authorization"))
            status, text = stub.answer(body)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
