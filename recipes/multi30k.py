"""Multi30k, English to German: BLEU of the validation part by an encoder-decoder, a decoder alone and a recurrent network.

    python recipes/multi30k.py [--data FOLDER --models transformer decoder rnn --seeds 1 --runs DIR] [--json FILE]

The texts are tokenised with sacremoses and lower-cased, as published figures on this corpus are; BLEU is sacrebleu's without a
tokenization of its own. Beside it is plain BLEU: the translations with sacremoses' tokenization undone, against the texts as they
are, by sacrebleu's defaults but for case. FOLDER has train.en.gz, train.de.gz, val.en.gz and val.de.gz.
"""

import gzip
from pathlib import Path

from common import DATA, HERE, absent, heddle, heddle_json, minutes, parser, report, spread

LANGUAGES = ("en", "de")
MODELS = {  # a run file, and the best of a few length penalties on the validation part
    "transformer": ("multi30k.toml", 1.5),
    "decoder": ("multi30k-decoder.toml", 1.0),
    "rnn": ("multi30k-rnn.toml", 1.5),
}


def lines_of(file: Path) -> list[str]:
    """The lines of a compressed text."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def prepare(data: Path, to: Path) -> None:
    """Write the four texts, tokenised and in lower case."""
    from sacremoses import MosesTokenizer

    to.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        tokenizer = MosesTokenizer(language)
        for part in ("train", "val"):
            lines = lines_of(data / f"{part}.{language}.gz")
            texts = [tokenizer.tokenize(line.strip(), return_str=True, escape=False).lower() for line in lines]
            (to / f"{part}.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def plain_bleu(data: Path, translations: Path) -> float:
    """BLEU of the translations as ordinary text, against the untouched references, without case."""
    from sacremoses import MosesDetokenizer

    from heddle.generate import score_translations

    detokenizer = MosesDetokenizer("de")
    texts = [detokenizer.detokenize(line.split()) for line in translations.read_text(encoding="utf-8").splitlines()]
    return score_translations(texts, lines_of(data / "val.de.gz"), lowercase=True).bleu


def main() -> None:
    more = parser(__doc__, seeds=1)
    more.add_argument("--data", type=Path, default=DATA / "multi30k")
    more.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = more.parse_args()
    if not (arguments.data / "train.en.gz").is_file():
        absent(f"{arguments.data} has no train.en.gz; name the folder: --data FOLDER")
    texts = arguments.runs / "multi30k-texts"
    prepare(arguments.data, texts)
    train, val = ([texts / f"{part}.{language}" for language in LANGUAGES] for part in ("train", "val"))
    rows = []
    for name in arguments.models:
        file, penalty = MODELS[name]
        bleu, chrf, plain, seconds = [], [], [], []
        for seed in range(arguments.seeds):
            run = arguments.runs / f"multi30k-{name}-{seed}"
            files = f"validation_sources={[str(path) for path in val]}"
            seconds.append(heddle("train", HERE / file, *train, files, f"seed={seed}", "--name", run))
            output = run.with_suffix(".txt")
            words = ["--beams", 5, "--length-penalty", penalty, "--tokenize", "none", "--output", output]
            translations = heddle_json("eval", run, *val, *words)["translations"]
            bleu.append(translations["bleu"])
            chrf.append(translations["chrf"])
            plain.append(plain_bleu(arguments.data, output))
        rows.append([name, spread(bleu), spread(chrf), spread(plain), minutes(seconds)])
    report(["model", "BLEU", "chrF", "plain BLEU", "training"], rows, arguments.json)


if __name__ == "__main__":
    main()
