"""The real vLLM with a tiny random model: `... vllm_serve [ARGUMENT ...]`, those of `vllm serve`.

A plugin, which vLLM loads into each of its processes, has the worker hold the virtual GPU and run a
kernel for each forward pass, and has the tokenizer take CPU time by the length of the text.
"""

# ruff: noqa: PLC0415 - only its own environment has the libraries
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
import sys
from typing import Any

from stacks.loops.common import FOLDER, HOST, PORT, burn
from stacks.loops.gpu import STEP, hold, ready

_MODEL = FOLDER / "model"
_SECONDS_PER_LETTER = 0.001
"""Of tokenizing, so that a hundred letters take more than a step."""
_ARGUMENTS = (
    *(f"--model={_MODEL}", "--served-model-name=tiny", f"--host={HOST}", f"--port={PORT}"),
    *("--max-model-len=512", "--block-size=32", "--dtype=float32"),
    *("--kv-cache-memory-bytes=64M", "--enforce-eager", "--no-enable-prefix-caching"),
)
_PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: virtual-gpu\nVersion: 1\n",
    "entry_points.txt": f"[vllm.general_plugins]\nvirtual_gpu = {__name__}:hook\n",
}


def hook() -> None:
    """Put kernels beside the worker's forward passes, and CPU time before the tokenizer's work."""
    from transformers import PreTrainedTokenizerFast
    from vllm.v1.worker.gpu_worker import Worker

    gpus: list[Any] = []
    load, execute = Worker.load_model, Worker.execute_model
    tokenize = PreTrainedTokenizerFast._encode_plus

    def load_model(worker: object, *given: object, **named: object) -> object:
        loaded = load(worker, *given, **named)
        gpus.append(hold())
        ready()
        return loaded

    def execute_model(worker: object, scheduled: Any) -> object:  # noqa: ANN401 - vLLM's
        end = gpus[0].launch(STEP if scheduled.total_num_scheduled_tokens else 0.0)
        executed = execute(worker, scheduled)
        gpus[0].synchronize(end)
        return executed

    def encode(tokenizer: object, text: Any, *given: object, **named: object) -> object:  # noqa: ANN401
        texts = [text] if isinstance(text, str) else text
        burn(_SECONDS_PER_LETTER * sum(map(len, texts)))
        return tokenize(tokenizer, text, *given, **named)

    Worker.load_model, Worker.execute_model = load_model, execute_model
    PreTrainedTokenizerFast._encode_plus = encode


def _make_model() -> None:
    """Two layers with random weights, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: at for at, letter in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words).save_pretrained(_MODEL)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(_MODEL)


def main(*arguments: str) -> None:
    """Become vLLM's server."""
    _make_model()
    plugin = FOLDER / "lib" / "virtual_gpu-1.dist-info"
    plugin.mkdir()
    for name, text in _PLUGIN.items():
        (plugin / name).write_text(text)
    told = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    # Its command line wants a distribution of the name `vllm`.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_ARGUMENTS]
    os.execve(command[0], [*command, *arguments], {**os.environ, **told})  # noqa: S606
