# SPDX-License-Identifier: Apache-2.0
"""
The three lines of README.md in the ways in which a user tries them: twice, with another prompt, in another process,
with a model that changed, and with something missing. The result is that of a cache without a name, or an error that
says what to do.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import make
from transformers import AutoModelForCausalLM

import sparsekv
from sparsekv.transformers import Unsupported

ROOT = Path(__file__).resolve().parents[2]
# sketch requires head dimensions that are multiples of 32
SHAPE = dict(head_dim=32, hidden_size=64, num_attention_heads=2, num_key_value_heads=1)


def readme_lines() -> str:
    """Checks that both pages have the same lines, and returns them."""
    found = [re.findall(r"```python\n(import sparsekv\.transformers\n.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)[0] for page in ("README.md", "doc/python.md")]
    assert found[0] == found[1] and len(found[0].splitlines()) == 3 and "chat-17" in found[0]
    return found[0].replace("model.generate", "answer = model.generate")


def run(folder: Path, prompt: list[int], lines: str) -> list[int]:
    names = dict(AutoModelForCausalLM=AutoModelForCausalLM, folder=folder, inputs=dict(input_ids=torch.tensor([prompt])))
    exec(lines, names)  # the lines run in a namespace of their own, as in a user's module
    answer: torch.Tensor = names["answer"]
    return answer[0].tolist()


def run_elsewhere(folder: Path, prompt: list[int], socket: str) -> list[int]:
    """The same in another process."""
    program = f"import json, test_readme as t, pathlib; print(json.dumps(t.run(pathlib.Path({str(folder)!r}), {prompt}, t.readme_lines())))"
    env = {**os.environ, "SPARSEKV_SOCKET": socket, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return json.loads(subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


@pytest.fixture
def ours():
    with sparsekv.private(512 << 20) as client:
        sparsekv.set_default(client)
        yield client
    sparsekv.set_default(None)


@pytest.fixture
def folder(tmp_path):
    make("Llama", 1, "sdpa", **SHAPE).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_again_and_again(ours, folder):
    lines = readme_lines()
    unnamed = lines.replace(', name="chat-17"', "")
    prompts = [[5, 9, 20, 33, 8] * 30, [5, 9, 20, 33, 8] * 20 + [7, 7, 7], [40] * 12]
    want = [run(folder, prompt, unnamed) for prompt in prompts]
    assert run(folder, prompts[0], lines) == want[0]
    assert run(folder, prompts[0], lines) == want[0]  # running a notebook cell again
    assert run_elsewhere(folder, prompts[0], ours.socket) == want[0]
    for i in (1, 2, 0):  # other prompts under the same name: a part of the first one, and an unrelated one
        assert run(folder, prompts[i], lines) == want[i]
    # under full, an answer's K and V are those of a prompt
    dense = lines.replace("sketch", "full").replace("chat-17", "chat-18")
    goes_on = [*run(folder, prompts[0], dense), 4, 4]  # the answer, and the next turn
    assert run(folder, goes_on, dense) == run(folder, goes_on, dense.replace(', name="chat-18"', ""))
    make("Llama", 2, "sdpa", **SHAPE).save_pretrained(folder)  # the model was trained further
    assert run(folder, prompts[0], lines) == run(folder, prompts[0], unnamed) != want[0]


def test_what_is_missing(ours, folder, monkeypatch):
    lines = readme_lines()
    with pytest.raises(ValueError, match="attn_implementation is sdpa, expected sparsekv"):
        run(folder, [5, 6], lines.replace(', attn_implementation="sparsekv"', ""))
    with pytest.raises(sparsekv.Error, match="no such policy|policy .*sketsh"):
        run(folder, [5, 6], lines.replace("sketch", "sketsh"))
    with pytest.raises(Unsupported, match="FalconForCausalLM has attention of its own, .*expected a family as Llama"):
        from transformers import FalconConfig, FalconForCausalLM

        FalconForCausalLM(FalconConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=60)).save_pretrained(folder / "falcon")
        run(folder / "falcon", [5, 6], lines)
    sparsekv.set_default(None)
    monkeypatch.setenv("SPARSEKV_SOCKET", str(folder / "none"))
    with pytest.raises(sparsekv.Error, match=r"systemctl start sparsekvd.*sparsekv\.private\(\)"):
        run(folder, [5, 6], lines)
