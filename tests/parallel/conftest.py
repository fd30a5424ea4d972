"""Tests of several processes make tiny runs."""

from tests.running import begin as begin
from tests.running import config as config
from tests.running import corpus as corpus
from tests.running import quick as quick
