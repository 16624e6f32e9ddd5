"""Sections of the configuration that stay at home, a file each. Others lie beside this folder."""
