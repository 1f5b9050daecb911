from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_recipes.data.clean.html import is_about_markup, strip_html

UNTOUCHED = [
    "",
    "a < b and c > d",
    "if a<b and b>c: pass",
    "List<int> x = new HashMap<String, List<b>>();",
    "template <typename T> std::vector<p> rows;",
    "for (i = 0; i<n; i++) { x <- y; }",
    "I <3 you & me",
    "Dear <name>, write to <address> or see <link>.",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<think>\nFirst, a < b.\n</think>\nSo yes.",
    '<tool_call>\n{"name": "f", "arguments": {"text": "<p>hi</p>"}}\n</tool_call>',
    "<s>[INST] hi [/INST] hello</s>",
    "<start_of_turn>user\nhi<end_of_turn>",
    "<image>\nWhat is this? <video>",
    "<note><to>Tove</to><body>Do <b>not</b> forget</body></note>",
    "<instructions>Sum up.</instructions>\n<document><p>One.</p></document>",
    "<summary>short</summary><output>x</output>",
    'return <div className="x"><b>{name}</b></div>;',
    "<ul>\n  {{#each items}}<li>{{this}}</li>{{/each}}\n</ul>",
    "<?php echo '<b>hi</b>'; ?>",
    'std::cout << "<b>" << x;\nstd::cout << "</b>";',
    '{"html": "<p>one<br>two</p>"}',
    "The HTML tags <html> and </html> begin and end a page, <p>…</p> a paragraph.",
    "| a | b |\n|---|---|\n| one<br>two | 3 |",
    "Use `<b>bold</b>` and `&nbsp;`.",
    "```html\n<p>One &amp; two</p>\n```",
    "~~~\n<br>\n~~~",
    "```html\n<p>never closed</p>",
    'int *p = &reg; scanf("%d", &num); a &copy b',
    "x = a&b; y = c&&d; https://x.org/?a=1&copy=2",
    "&lt;b&gt;bold&lt;/b&gt;",  # tags written out on purpose
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_is_not_html_stays_to_the_character(text):
    assert strip_html(text) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Hello&nbsp;<b>world</b> &amp; a < b.</p><p>Second<br>line</p>", "Hello world & a < b.\n\nSecond\nline"),
        ("<p>one<p>two", "one\n\ntwo"),
        ("<div>one</div>\n\n<div>two</div>", "one\n\ntwo"),
        ("Text<br/>\nmore<br />\n\nend", "Text\nmore\n\nend"),
        ("<ul><li>one</li><li>two</li></ul><ol><li>a<li>b</ol>", "- one\n- two\n\n1. a\n2. b"),
        ("<table><tr><th>A<th>B</tr><tr><td>1</td><td>2</td></tr></table>", "A | B\n1 | 2"),
        ("10<sup>2</sup>, H<sub>2</sub>O, x<sup>ab</sup>", "10², H₂O, x^(ab)"),
        ("<p>a</p><script>if (x < 1) { y(); }</script><style>p {}</style><!-- b --><p>c</p>", "a\n\nc"),
        ("<a href='http://x.org/?a=1&b=2'>here</a>", "here"),
        ("<p>caf&eacute; &#8217; &#x2019; &unknown;</p>", "café ’ ’ &unknown;"),
        ("<b>5 &lt; 6</b> & List<int>", "5 < 6 & List<int>"),
        ("<think>\na <b>plan</b>\n</think>\n<p>Hi</p>", "<think>\na plan\n</think>\n\nHi"),
        ("<p>Hi</p><|im_end|>", "Hi\n\n<|im_end|>"),
        ("<p>Dear <name>, see <b>this</p>", "Dear <name>, see this"),
        ("text</p> with <b>litter</b></div>", "text\n\nwith litter"),
        ("<div>\n    one\n    two\n\n    three\n</div>", "one\ntwo\n\nthree"),
        ("  # Title\n\n    code\n\n<b>x</b>", "# Title\n\n    code\n\nx"),
    ],
)
def test_html_becomes_plain_text(html, text):
    assert strip_html(html) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Use <code>a &lt; b</code></p>", "Use `a < b`"),
        ("<p>Tick: <code>`x`</code></p>", "Tick: `` `x` ``"),
        (
            "<pre><code>if a &lt; b:\n    return  &amp;x\n</code></pre><p>done</p>",
            "```\nif a < b:\n    return  &x\n```\n\ndone",
        ),
        (
            "<b>Run</b>:\n```html\n<p>\n    keep  this &amp; that</p>\n```\nand `<br>`<br>end",
            "Run:\n```html\n<p>\n    keep  this &amp; that</p>\n```\nand `<br>`\nend",
        ),
    ],
)
def test_code_keeps_its_characters(html, text):
    assert strip_html(html) == text


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("AT&amp;T", "AT&T"),
        ("AT&amp;amp;T", "AT&T"),
        ("it&#39;s 5&nbsp;km&hellip;", "it's 5 km…"),
        ("it&amp;#39;s", "it's"),
        ("if (a &lt; b)", "if (a < b)"),
    ],
)
def test_entities_without_tags_are_resolved_where_only_html_has_them(escaped, text):
    assert strip_html(escaped) == text


def test_pages_nested_without_end_do_not_break_it():
    assert strip_html("<div>" * 5000 + "x" + "</div>" * 5000) == "x"
    assert strip_html("<p>" * 3000 + "deep") == "deep"
    assert strip_html("<b" * 20000) == "<b" * 20000


WORDS = st.text(st.sampled_from("abcxyz ABC.,0123<>&;/=\n"), max_size=30)


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_no_character_of_plain_text_is_lost_between_tags(words):
    assume(not any(word.rstrip(" ").endswith(";") for line in words for word in line.split("\n")))  # reads as code
    html = "".join(f"<b>{word.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}</b>" for word in words)
    visible = [character for word in words for character in word if not character.isspace()]
    assert [character for character in strip_html(html) if not character.isspace()] == visible


@given(st.text(st.sampled_from("ab <>/&;pb\n`|{}\"'="), max_size=60))
def test_any_text_is_taken(text):
    strip_html(text)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=4))
def test_json_stays_json(value):
    text = json.dumps({**value, "html": "<p>a</p><br>"})
    assert strip_html(text) == text


@pytest.mark.parametrize(
    ("turn", "about"),
    [
        ("Write an HTML page.", True),
        ("请生成一个网页", True),
        ("<!DOCTYPE html>\n<title>x</title>", True),
        ("<form action='/'>", True),
        ("Tell me about cats. <br>Thanks", False),
        ("a < b", False),
    ],
)
def test_turns_about_markup_are_known(turn, about):
    assert is_about_markup(turn) == about
