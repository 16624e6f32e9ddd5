"""Reads a recorded run for people: alarms, stories, traces, reasons and samples."""
