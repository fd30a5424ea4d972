"""Chat templates of others: one without an end, or with too much to say, is an error and nothing else."""

import gc
import re
import subprocess
from pathlib import Path
from threading import Thread

import pytest

from heddle.errors import HeddleError
from heddle.text import train_tokenizer
from heddle.text.chat_template import ChatTemplate
from heddle.text.template_process import SandboxedTemplate, command

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
MEAN = f"{{% if messages[0].content == 'endless' %}}{ENDLESS}{{% endif %}}{{{{ messages[0].content }}}}"


def conversation(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_one_without_an_end_is_ended_and_the_next_conversation_is_rendered() -> None:
    template = SandboxedTemplate(MEAN)
    for _ in range(2):
        assert template.render(conversation("warp é 🙂 \ud800\n"), {}) == "warp é 🙂 \ud800\n"
        with pytest.raises(HeddleError, match=r"^the chat template did not finish within 1 s$"):
            template.render(conversation("endless"), {})


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
        ("{{ open('/etc/passwd') }}", "'open' is undefined"),
        ("{{ 'a' * 10**10 * messages | length }}", "MemoryError"),
        ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "longer than 10,000,000 characters"),
        ("{{ raise_exception('no\nsystem') }}", "refuses this conversation: no system"),
        ("{{ raise_exception('a' * 10**6) }}", "refuses this conversation: aaa"),
    ],
)
def test_what_it_may_not_do_is_refused(template: str, error: str) -> None:
    with pytest.raises(HeddleError, match=re.escape(error)) as caught:
        SandboxedTemplate(template).render(conversation("warp"), {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_what_is_not_jinja_or_cannot_be_compiled_is_refused_at_once() -> None:
    with pytest.raises(HeddleError, match="not valid Jinja"):
        SandboxedTemplate("{% if %}")
    with pytest.raises(HeddleError, match=r"did not finish|cannot be compiled|ended the process"):
        SandboxedTemplate("{{ 9 ** (9 ** 9) }}")  # a constant, which the compiler computes


def test_the_process_ends_with_its_template() -> None:
    template = SandboxedTemplate("{{ messages[0].content }}")
    process = template._process
    assert process is not None
    assert process.poll() is None
    process.kill()
    process.wait()
    with pytest.raises(HeddleError, match="ended the process that renders it"):
        template.render(conversation("warp"), {})
    assert template.render(conversation("weft"), {}) == "weft"
    process = template._process
    assert process is not None
    del template
    gc.collect()
    assert process.poll() is not None


def test_threads_wait_for_each_other() -> None:
    template, answers = SandboxedTemplate("{{ messages[0].content }}"), dict[int, str]()

    def work(number: int) -> None:
        for _ in range(20):
            answers[number] = template.render(conversation(str(number)), {})

    threads = [Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: str(number) for number in range(5)}


def test_it_is_rendered_as_here() -> None:
    """With the functions and tags of published templates, marks in special tokens, and a date."""
    tokenizer = train_tokenizer("bytes", [], special=("<|end|>",))
    source = (
        "{{ bos }}{% for message in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{{ message | tojson(ensure_ascii=True) }}{% generation %}<|end|>{% endgeneration %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    talk = [*conversation("a"), {"role": "assistant", "content": "é <|end|>"}]
    here, apart = (
        ChatTemplate(tokenizer, source, {"bos": "<b>"}, "2024-07-26", sandboxed=each) for each in (False, True)
    )
    assert here.text(talk) == apart.text(talk)
    assert here.render(talk) == apart.render(talk)
    assert here.text(talk).endswith("2024")


def test_the_program_needs_nothing_but_jinja(tmp_path: Path) -> None:
    """It must not import a package that takes seconds to start, such as torch."""
    python, *rest = command()
    call = [python, "-X", "importtime", *rest]
    done = subprocess.run(call, cwd=tmp_path, input=b"", capture_output=True, check=False)
    assert done.returncode == 0
    brought = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "jinja2.sandbox" in brought
    assert not {name for name in brought if name.split(".")[0] in ("heddle", "torch", "numpy")}
