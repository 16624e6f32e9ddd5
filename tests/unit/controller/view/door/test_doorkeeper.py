"""What waits for the first page of a view."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

from controller.view.door import doorkeeper

LIMIT_S = 60


def test_it_imports_the_standard_library_alone():
    tree = ast.parse(Path(doorkeeper.__file__).read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert set(names) <= {"os", "select", "sys"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_it_becomes_the_view_when_somebody_connects_and_ends_when_the_run_does():
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        with socket.create_connection(bound.getsockname()):
            assert doorkeeper.wait(bound.fileno(), read)
        bound.accept()[0].close()
        files = bound.fileno(), read
        words = [sys.executable, "-I", "-S", doorkeeper.__file__, *map(str, files), "/bin/echo", "up"]
        with (
            subprocess.Popen(words, pass_fds=files, stdout=subprocess.PIPE) as process,
            socket.create_connection(bound.getsockname()),
        ):
            assert process.stdout.read() == b"up\n"
        bound.accept()[0].close()
        with subprocess.Popen(words, pass_fds=files, stdout=subprocess.PIPE) as process:
            os.close(write)
            assert process.stdout.read() == b""
            assert process.wait(LIMIT_S) == 0
    os.close(read)
