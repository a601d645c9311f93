"""Code that messages and docstrings name is there, under that name."""

import ast
import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("keras")

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp

ROOT = Path(__file__).resolve().parents[1]
PLACES = {"keras": keras, "np": np, "tf": tf, "tfdp": tfdp, "tfdp_layers": tfdp}
NAMED = re.compile(rf"(?<![\w./])(?:{'|'.join(PLACES)})(?:\.[A-Za-z_]\w*)+(?!\w|[/{{*]|\.\.)")


def texts_of(tree):
    """The strings in a module, docstrings among them; in f-strings {} stands for what is filled in."""
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def is_there(name):
    """Whether a dotted name leads somewhere, by attributes or by modules."""
    first, *rest = name.split(".")
    found, path = PLACES[first], PLACES[first].__name__
    for part in rest:
        path += f".{part}"
        if not hasattr(found, part):
            try:
                found = importlib.import_module(path)
            except ImportError:
                return False
        else:
            found = getattr(found, part)
    return True


def names_in(source):
    """The dotted names in the strings of a module's text."""
    return {name for text in texts_of(ast.parse(source)) for name in NAMED.findall(text)}


def test_names_in_messages_and_docstrings_lead_somewhere():
    files = [path for folder in ("tfdp_layers", "accounting", "callbacks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    named = {name: str(path.relative_to(ROOT)) for path in files for name in names_in(path.read_text(encoding="utf-8"))}
    assert len(named) > 200
    assert {name: where for name, where in named.items() if not is_there(name)} == {}


def test_a_name_that_leads_nowhere_is_found():
    source = "raise ValueError(f'{x}: loss=keras.losses.mse_of(y, p), ' f'or np.{x}; model.keras.x, keras.io/api')"
    assert {name for name in names_in(source) if not is_there(name)} == {"keras.losses.mse_of"}
