"""Compiles modules with mypyc: `python -P compiler.py FILE...` in a copy of the sources.

Invariant: the modules do what their sources do, and check the types of arguments and attributes beside it.
"""

import sys

from mypyc.build import mypycify
from setuptools import setup


def compile_here(files: list[str]) -> None:
    """Write an extension module beside each file. Ends the process if a file has a type error."""
    modules = mypycify(
        ["--config-file=mypy.ini", *files],
        opt_level="2",
        debug_level="0",
        multi_file=True,  # a single file of C takes the compiler 2.7 times as long
    )
    arguments: dict[str, object] = {"script_args": ["build_ext", "--inplace"], "ext_modules": modules}
    setup(name="core", packages=[], **arguments)  # pyright: ignore[reportArgumentType]  # which mypyc loosens


if __name__ == "__main__":
    compile_here(sys.argv[1:])
