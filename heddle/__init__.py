"""heddle: the transformer of the lectures, whole and real."""
