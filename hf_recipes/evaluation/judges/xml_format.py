"""XML as a format of answers: well-formed, by expat, without document types."""

from __future__ import annotations

from xml.parsers import expat


class _DocumentType(Exception):
    pass


def xml_fault(text: str, root: str | None = None) -> str:
    """Why `text` is not one well-formed XML element (of the tag `root`).

    Document types are refused: their entities can grow without bound or name files, and an answer needs none.
    """
    tags: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, _: tags.append(tag) if not tags else None
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(text.encode("utf-8"), True)
    except _DocumentType:
        return "XML with a document type, which is not read"
    except UnicodeEncodeError:
        return "not XML: it holds half a surrogate pair"
    except expat.ExpatError as error:
        return f"not XML: {error}"
    if root is not None and tags[0] != root:
        return f"XML of <{tags[0]}>, not of <{root}>"
    return ""


def _refuse(*_: object) -> None:
    raise _DocumentType
