import pytest

from forerun.data.own.text_signs import language_of, markup_in, signs_in

TEXTS = {
    "English": "What is the name of the river that runs through it?",
    "German": "Das ist nicht der Ort, an dem ich mit ihm war.",
    "French": "Je ne sais pas pour qui sont les livres dans la boîte.",
    "Spanish": "El libro que lees es de los niños y las niñas.",
    "Cyrillic": "Мама мыла раму",
    "Japanese": "これは本です",
    "Chinese": "这是一本书",
    "Korean": "이것은 책입니다",
    "code": "def f(x):\n    if x > 1:\n        return x\n    return f(x + 1)\n",
    "not told": "12 34 !!",
}


@pytest.mark.parametrize("name", TEXTS)
def test_languages(name):
    assert language_of(TEXTS[name]) == name


@pytest.mark.parametrize(
    "secret",
    [
        "AKIA" + "A1" * 8, "ghp_" + "a1" * 18, "hf_" + "aB" * 17, "sk-" + "a1" * 12, "sk-proj-" + "a1" * 12,
        "-----BEGIN RSA PRIVATE KEY-----", "xoxb-" + "1" * 12, "AIza" + "x" * 35, "sk_live_" + "a" * 24,
        "eyJ" + "a" * 12 + ".eyJ" + "b" * 12 + "." + "c" * 12,
    ],
)  # fmt: skip
def test_forms_of_secrets(secret):
    assert signs_in(f"here: {secret} .") == {"secret"}


@pytest.mark.parametrize("text", ["a ghost skips sk-", "AKIA in a word", "@home and a @ b", "eyJabc"])
def test_what_is_no_secret(text):
    assert signs_in(text) == set()


def test_addresses():
    assert signs_in("mail jo.doe+x@mail.example.org!") == {"email"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<p class='x'>A film.</p>", "html"), ("A film.<br/>", "html"), ("a &nbsp; b", "html"),
        ("<|im_start|>user\nHi<|im_end|>", "turns"), ("### Human: Hi ### Assistant: Ho", "turns"),
        ("<s>[INST] Hi [/INST] Ho</s>", "turns"), ("User: Hi\nAssistant: Ho", "turns"),
        ("[03.03.25, 08:01:07] Anna Ruiz: Hi", "turns"), ("12/31/24, 9:01 PM - Ben: Ho", "turns"),
        ("a < b > c & d", ""), ("List<int> a", ""), ("On 03.03.25 we met: it rained", ""), ("Note: done", ""),
    ],
)  # fmt: skip
def test_markup(text, kind):
    assert {name for name, count in markup_in([text]).items() if count} == ({kind} if kind else set())
