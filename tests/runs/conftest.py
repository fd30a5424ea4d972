"""Tests of runs make tiny ones."""

from tests.running import begin as begin
from tests.running import config as config
from tests.running import corpus as corpus
from tests.running import quick as quick
from tests.running import roomy as roomy
