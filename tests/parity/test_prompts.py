"""Prompt files in every form, and the target's own tokenizer and template."""

from __future__ import annotations

import json

import pytest

from eagle_convert.errors import BrokenFileError, SourceError
from eagle_convert.parity.prompts import read_rows, take, tokenize

CHAT = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}")


@pytest.fixture
def target(tmp_path):
    """A folder with a word-level tokenizer whose ids a reader can check: one word, one id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "<user>", "<system>", "<assistant>", "</s>", "hello", "world", "be", "brief"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.add_special_tokens(words[:5])
    folder = tmp_path / "target"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"eos_token": {"content": "</s>"}, "chat_template": CHAT})
    return folder


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def ids_of(path, target, **options):
    return tokenize(*read_rows(path), target, **options).ids


@pytest.mark.parametrize(("row", "ids"), [
    ({"prompt": "hello world"}, (1, 5, 6, 4, 3)),
    ({"turns": ["hello world", "be brief"]}, (1, 5, 6, 4, 3)),
    ({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]},
     (2, 7, 8, 4, 1, 5, 4, 3)),
    ({"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "world"},
                        {"from": "human", "value": "brief"}]}, (1, 5, 4, 3)),
    ({"text": "hello world"}, (5, 6)),
    ({"prompt_ids": [5, 5, 5]}, (5, 5, 5)),
    ({"id": 1, "prompt": "ignored", "prompt_ids": [6]}, (6,)),
])
def test_every_form(tmp_path, target, row, ids):
    assert ids_of(write(tmp_path / "p.jsonl", row), target) == (ids,)
    assert ids_of(write(tmp_path / "p.json", [row]), target) == (ids,)


def test_plain_text_is_templated_like_a_prompt(tmp_path, target):
    (tmp_path / "p.txt").write_text("hello world\n\n  be brief \n")
    assert ids_of(tmp_path / "p.txt", target) == ((1, 5, 6, 4, 3), (1, 7, 8, 4, 3))


def test_a_trace_file_gives_its_ids(tmp_path):
    head = {"schema": "eagle-convert/trace/1", "engine": "e", "version": "1", "method": "eagle", "draft_tokens": 4,
            "tree": None, "temperature": 0, "seed": 0, "dtype": "float32", "max_new_tokens": 8, "eos_token_ids": []}
    path = write(tmp_path / "t.jsonl", head, {"prompt_ids": [4, 5], "output_ids": [], "steps": []})
    assert ids_of(path, None) == ((4, 5),)


def test_raw_is_untemplated_and_says_so(tmp_path, target):
    found = tokenize(*read_rows(write(tmp_path / "p", {"prompt": "hello world"})), target, raw=True)
    assert found.ids == ((5, 6),)
    assert (found.raw, found.template) == (True, None)


def test_what_is_said_beside_the_numbers(tmp_path, target):
    found = tokenize(*read_rows(write(tmp_path / "p", {"prompt": "hello"})), target)
    assert found.first == "<user>hello</s><assistant>"
    assert found.system_prompt is False
    assert found.template is not None
    assert found.template["file"] == "tokenizer_config.json"
    assert len(found.document()["prompts"]["digests"][0]) == 16


def test_c95_two_templates_the_default_one_is_used(tmp_path, target):
    write(target / "tokenizer_config.json", {"eos_token": "</s>", "chat_template": [
        {"name": "tool_use", "template": "wrong"}, {"name": "default", "template": CHAT}]})
    assert ids_of(write(tmp_path / "p", {"prompt": "hello"}), target) == ((1, 5, 4, 3),)


def test_a_template_file_wins_over_the_config(tmp_path, target):
    (target / "chat_template.jinja").write_text("{{ messages[0].content }} world")
    assert ids_of(write(tmp_path / "p", {"prompt": "hello"}), target) == ((5, 6),)


def test_a_template_prints_the_same_date_every_day(tmp_path, target):
    (target / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    assert tokenize(*read_rows(write(tmp_path / "p", {"prompt": "hello"})), target).first == "26 Jul 2024"


@pytest.mark.parametrize("template", ["{{ raise_exception('no system role') }}", "{% for %}",
                                      "{{ messages.__class__.__mro__[1].__subclasses__() }}"])
def test_a_template_that_fails_or_breaks_out_is_an_error(tmp_path, target, template):
    (target / "chat_template.jinja").write_text(template)
    with pytest.raises(BrokenFileError) as caught:
        ids_of(write(tmp_path / "p.jsonl", {"prompt": "hello"}), target)
    assert "chat_template.jinja, p.jsonl, row 0" in caught.value.where
    assert "--raw" in caught.value.how


def test_no_tokenizer_asks_for_ids(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (None, tmp_path / "empty"):
        with pytest.raises(SourceError) as caught:
            ids_of(None, folder)
        assert "prompt_ids" in caught.value.how


def test_no_template_asks_for_raw(tmp_path, target):
    write(target / "tokenizer_config.json", {})
    with pytest.raises(SourceError) as caught:
        ids_of(write(tmp_path / "p", {"prompt": "hello"}), target)
    assert "--raw" in caught.value.how


@pytest.mark.parametrize(("content", "where"), [
    ('{"prompt": "a"}\n{"question": "b"}', "p, line 2: found the keys question"),
    ('{"prompt": "a"}\n{"prompt": 5}', "p, line 2: prompt is 5"),
    ('{"prompt": "a"}\n{"prompt": " "}', "p, line 2: prompt is"),
    ('{"prompt": "a"}\n{"prompt_ids": [1, -1]}', "p, line 2: prompt_ids"),
    ('{"prompt": "a"}\n{"prompt"', "p, line 2:"),
    ('[{"turns": []}]', "p, row 0: turns"),
    ('[{"conversations": [{"from": "gpt", "value": "x"}]}]', "nothing is asked"),
    ('[{"messages": [{"role": "user"}]}]', "the content of a message"),
    ("[7]", "p, row 0: found 7"),
])
def test_bad_rows_are_named(tmp_path, content, where):
    (tmp_path / "p").write_text(content)
    with pytest.raises(BrokenFileError) as caught:
        read_rows(tmp_path / "p")
    assert where in caught.value.where


def test_an_empty_file_has_no_prompts(tmp_path):
    (tmp_path / "p").write_text("\n \n")
    with pytest.raises(SourceError, match="no prompts"):
        read_rows(tmp_path / "p")


def test_the_bundled_set_and_how_many_are_taken():
    source, rows = read_rows(None)
    assert (source, len(rows)) == ("bundled", 48)
    assert len(take(rows, 5)[0]) == 5
    kept, warning = take(rows, 50)
    assert len(kept) == 48
    assert warning is not None
    assert "48 are there" in warning
