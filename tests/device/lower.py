"""A program: measure all budgets, and lower what has fallen in budgets.toml; new cases are added, and nothing is raised."""

import importlib

from tests.device import server

if __name__ == "__main__":
    server.prepare()
    importlib.import_module("tests.device.budgets").lower()
