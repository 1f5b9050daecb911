"""HTML elements by what they mean for text."""

from __future__ import annotations


def _names(spaced: str) -> frozenset[str]:
    return frozenset(spaced.split())


# Elements that people see in their text when HTML was left in; one whole one of these is taken as a sign of HTML.
TELLING = _names(
    "a b big blockquote body br center del div em font form h1 h2 h3 h4 h5 h6 hr html i iframe img ins li ol p pre "
    "script small span strike strong style sub sup table td th tr tt u ul"
)
# Elements that are also names in templates, XML and prompts (<title>, <summary>, <code>): HTML among telling ones only.
# <s> is left out: it begins a text for many tokenizers.
OTHERS = _names(
    "abbr acronym address applet area article aside audio base bdi bdo button canvas caption cite code col colgroup "
    "data datalist dd details dfn dialog dir dl dt embed fieldset figcaption figure footer frame frameset head header "
    "hgroup input kbd label legend link main map mark menu meta meter nav nobr noframes noscript object optgroup "
    "option output param picture progress q rp rt ruby samp section select source summary svg template textarea tbody "
    "tfoot thead time title track var video wbr"
)
VOID = _names("area base br col embed frame hr img input link meta param source track wbr")
NEEDS_NO_END = _names("caption colgroup dd dt li option p tbody td tfoot th thead tr")
# Not HTML, and not a sign of XML or JSX either: what chat models write around thoughts and calls.
CHAT_TAGS = _names(
    "answer audio box final function function_call functions image img reasoning ref reflection s think thinking "
    "thought tool tool_call tool_calls tool_response tool_result tools video"
)

# How they are written as text.
DROPPED = _names("canvas datalist embed iframe noscript object script style svg template")
PARAGRAPHS = _names("blockquote details dl fieldset figure form h1 h2 h3 h4 h5 h6 hr ol p pre table ul")
LINES = _names(
    "address article aside body button caption center dd dir div dt figcaption footer header html legend li main menu "
    "nav option section summary tbody tfoot thead title tr"
)
CONTAINERS = _names("colgroup dir dl menu ol select table tbody tfoot thead tr ul")  # white space in them is layout
CODE = _names("code kbd samp tt")
