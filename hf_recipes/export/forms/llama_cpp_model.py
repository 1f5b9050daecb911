"""A GGUF file run by llama.cpp, with as much of a transformers model's face as generation and losses here ask for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.log import logger

_BATCH = 512


class LlamaCppModel:
    """Greedy `generate` and logits of a GGUF file, in the runtime that people serve it with.

    Args:
        file: the GGUF file.
        context: tokens that fit, prompt and answer together.
        generation_config: of the merged model, for its end tokens.

    Raises:
        ValueError: llama.cpp cannot load the file.
    """

    training = False

    def __init__(self, file: Path, context: int, generation_config: Any) -> None:
        import torch

        self.device = torch.device("cpu")  # where token ids and logits are exchanged
        self.generation_config = generation_config
        self._file, self._context = file, context
        self._llama = self._open(logits_all=False)
        self._with_logits: Any = None
        text_config = SimpleNamespace(vocab_size=self._llama.n_vocab())
        self.config = SimpleNamespace(get_text_config=lambda: text_config)

    def eval(self) -> LlamaCppModel:
        """As `torch.nn.Module.eval`; there is no other mode."""
        return self

    def train(self, mode: bool = True) -> LlamaCppModel:
        """As `torch.nn.Module.train`; there is nothing to train."""
        return self

    def tokenize(self, text: str) -> list[int]:
        """Token ids by the file's own tokenizer, special tokens read as such, no BOS put before."""
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=True))

    def generate(self, input_ids: Any, attention_mask: Any, generation_config: Any) -> Any:
        """The likeliest tokens, row by row: (rows, length) → (rows, length + new), filled with the pad token."""
        import torch

        ends = generation_config.eos_token_id or []
        ends = {ends} if isinstance(ends, int) else set(ends)
        answers = []
        for ids, mask in zip(input_ids.tolist(), attention_mask.tolist(), strict=True):
            prompt = [token for token, real in zip(ids, mask, strict=True) if real]
            answers.append(self._answer(prompt, ends, generation_config.max_new_tokens))
        length = max(map(len, answers))
        filled = [answer + [generation_config.pad_token_id or 0] * (length - len(answer)) for answer in answers]
        return torch.cat([input_ids, torch.tensor(filled, dtype=input_ids.dtype).reshape(len(answers), length)], dim=1)

    def __call__(self, input_ids: Any, attention_mask: Any, use_cache: bool = False) -> Any:
        """``.logits`` (rows, length, vocabulary) in fp32; rows may be filled on the right, where logits are zero."""
        import torch

        if self._with_logits is None:
            self._with_logits = self._open(logits_all=True)
        llama = self._with_logits
        logits = torch.zeros((*input_ids.shape, llama.n_vocab()))
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            tokens = ids[mask.bool()].tolist()
            llama.reset()
            llama.eval(tokens)
            logits[row, : len(tokens)] = torch.from_numpy(llama.scores[: len(tokens)])
        return SimpleNamespace(logits=logits)

    def close(self) -> None:
        """Give the memory back; left to the end of the program, llama_cpp's own clean-up fails loudly."""
        for llama in (self._llama, self._with_logits):
            if llama is not None:
                llama.close()

    def _answer(self, prompt: list[int], ends: set[int], limit: int) -> list[int]:
        answer: list[int] = []
        self._llama.reset()
        for token in self._llama.generate(prompt, temp=0.0, top_k=1, top_p=1.0, min_p=0.0, repeat_penalty=1.0):
            answer.append(token)
            if token in ends or len(answer) == limit:
                break
        return answer

    def _open(self, *, logits_all: bool) -> Any:
        import llama_cpp

        return llama_cpp.Llama(
            str(self._file),
            n_ctx=self._context,
            n_batch=_BATCH,
            n_threads=usable_cores(),
            n_gpu_layers=-1,
            logits_all=logits_all,
            verbose=False,
        )


def llama_cpp_is_here() -> bool:
    """Whether the package llama_cpp (llama-cpp-python) can be imported; one that is there and broken is told."""
    try:
        import llama_cpp  # noqa: F401
    except ModuleNotFoundError:
        return False
    except Exception as error:  # a shared library that does not load: OSError, RuntimeError …
        logger.warning("The package llama_cpp is installed but does not load (%s): passed over.", error)
        return False
    return True
