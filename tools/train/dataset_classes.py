"""Class names of the data mixture, in class-index order."""

import importlib


def class_names(mixture: str) -> tuple[str, ...]:
    return tuple(importlib.import_module(mixture.split(":")[0]).CLASSES)
