"""Token ids that no model has a token for are refused where frames enter."""

import json

import numpy as np
import pytest

from protocol.errors import RemoteError
from protocol.messages import Delta, ExamplesEncoded, Generated, Message, PromptsEncoded
from protocol.model_files import vocabulary_of
from protocol.wire.codec import Packet, decode, encode

SIZE = 100


def said(kind: type[Message], *ids: int) -> list[bytes]:
    frame, count = np.asarray(ids, dtype="<i4").tobytes(), len(ids)
    if kind is Generated:
        message: Message = Generated.of((Delta(0, 0, 1, 0, count, 0, ""),))
        return encode(Packet(1, 0, message, (frame, np.zeros(count, dtype="<f4").tobytes())))
    message = (
        PromptsEncoded(((0, count),), ())
        if kind is PromptsEncoded
        else ExamplesEncoded(((0, 1, count - 1),), ())
    )
    return encode(Packet(1, 0, message, (frame,)))


@pytest.mark.parametrize("kind", [Generated, PromptsEncoded, ExamplesEncoded])
def test_ids_of_the_vocabulary_pass_and_no_others(kind):
    assert decode(said(kind, 0, 99), vocabulary=SIZE).message
    assert decode(said(kind, 0, 2**31 - 1)).message  # nobody knows how many there are
    for wrong in (-1, 100, 2**31 - 1):
        with pytest.raises(
            RemoteError, match=f"{kind.__name__} carries the token id {wrong}; the model has 100"
        ):
            decode(said(kind, 5, wrong, 6), vocabulary=SIZE)
    with pytest.raises(RemoteError, match="carries the token id -1"):
        decode(said(kind, 5, -1))


def test_a_token_outside_of_its_kept_set_is_refused_as_its_logprob_would_be_no_number():
    message = Generated.of((Delta(0, 0, 1, 0, 1, 0, ""),), kept_words=(2,))
    for token in (4, 7):
        frames = [np.asarray(ids, dtype="<i4").tobytes() for ids in ([token], [0], [2], [4, 5])]
        sent = encode(Packet(1, 0, message, tuple(frames)))
        if token == 4:
            assert decode(sent, vocabulary=SIZE).message == message
            continue
        with pytest.raises(RemoteError, match="Generated carries a kept set without the token 7"):
            decode(sent, vocabulary=SIZE)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 7}, 7),
        ({"text_config": {"vocab_size": 8}}, 8),
        ({"vocab_size": "many"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_the_vocabulary_is_what_the_models_configuration_says(tmp_path, config, size):
    assert vocabulary_of(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_of(tmp_path) == size
