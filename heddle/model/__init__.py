"""Stacks, the transformer, and how one is built and filled."""

from heddle.model.build import build as build
from heddle.model.initialise import initialise as initialise
from heddle.model.stack import Stack as Stack
from heddle.model.transformer import Transformer as Transformer

__all__ = ["Stack", "Transformer", "build", "initialise"]
