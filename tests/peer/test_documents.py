"""Every key of a document says what it means."""

import typing
from collections.abc import Iterator
from typing import Any

import pytest

from peer import documents
from peer.data import documents as data_documents
from peer.membership import documents as membership_documents
from peer.records import documents as record_documents
from peer.relay import documents as relay_documents

DOCUMENTS = {
    **documents.DOCUMENTS,
    **record_documents.DOCUMENTS,
    **data_documents.DOCUMENTS,
    **relay_documents.DOCUMENTS,
    **membership_documents.DOCUMENTS,
}


def records(kind: Any) -> Iterator[Any]:
    """Every ``TypedDict`` that a type consists of."""
    if typing.is_typeddict(kind):
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from records(hint)
    for part in typing.get_args(kind):
        yield from records(part)


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_record_and_key_has_a_meaning(command: str) -> None:
    documented = list(records(DOCUMENTS[command]))
    assert documented
    for record in documented:
        assert record.__doc__, f"{record.__name__} has no docstring"
        for key, hint in typing.get_type_hints(record, include_extras=True).items():
            (meaning,) = getattr(hint, "__metadata__", ("",))
            assert meaning, f"{record.__name__}.{key} has no meaning"
