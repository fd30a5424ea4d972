"""What tests of lessons share."""

from tests.lessons.sandboxes import sandbox as sandbox
