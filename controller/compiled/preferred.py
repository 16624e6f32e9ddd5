"""Prefers the compiled core, once this module is imported: so before any module that may be compiled."""

from controller.compiled.finder import prefer

prefer()
