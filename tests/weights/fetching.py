"""A program that imports a model by its name on the Hub and prints its family, or why it cannot: `fetching.py NAME RUN`."""

import sys

from heddle.errors import HeddleError
from heddle.weights import import_model


def main() -> None:
    try:
        print(import_model(sys.argv[1], sys.argv[2], hub=True)["family"])
    except HeddleError as error:
        print(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
