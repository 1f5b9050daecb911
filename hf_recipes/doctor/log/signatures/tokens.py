"""Tokenizers, chat templates, token ids and labels."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_HF = "transformers 5.24, provoked"
_TORCH = "torch 2.13, provoked"

SIGNATURES: dict[str, Signature] = {
    "pad_token": Signature(
        needle="Asking to pad but the tokenizer does not have a padding token",
        cause="The tokenizer has no padding token, and rows of different lengths were to be padded.",
        cure="tokenizer.pad_token = tokenizer.eos_token, with padding masked by position and not by token id "
        "(hf-recipes "
        "does both)",
        example="ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a "
        "token to use "
        "as `pad_token` `(tokenizer.pad_token = tokenizer.eos_token e.g.)`",
        seen=_HF,
    ),
    "pad_of_classifier": Signature(
        needle="Cannot handle batch sizes > 1 if no padding token is defined",
        cause="A classifier takes the last token that is no padding, and its config does not say which token that is.",
        cure="model.config.pad_token_id = tokenizer.pad_token_id (hf-recipes classify does it)",
        example="ValueError: Cannot handle batch sizes > 1 if no padding token is defined.",
        seen=_HF,
    ),
    "chat_template": Signature(
        needle="tokenizer.chat_template is not set",
        cause="The data are conversations, and this tokenizer (of a base model, as a rule) has no chat template.",
        cure="start from the Instruct model, or give a template: chat_template_path",
        example="ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no "
        "template argument was passed!",
        seen=_HF,
    ),
    "roles_alternate": Signature(
        needle="Conversation roles must alternate",
        cause="The chat template wants user and assistant in turn, and a conversation has two of one kind in a row, or "
        "begins with another.",
        cure="hf-recipes inspect names the rows; join consecutive turns or drop them in the data",
        example="jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...",
        seen=_HF,
    ),
    "system_role": Signature(
        needle="ystem role not supported",
        cause="The chat template of this model has no system turn, and the data have one.",
        cure="put the system text before the first user turn, or take it out",
        example="jinja2.exceptions.TemplateError: System role not supported",
        seen=_HF,
    ),
    "token_out_of_range": Signature(
        needle="index out of range in self",
        cause="A token id is not below the size of the embedding: tokenizer and model do not belong together, or "
        "tokens "
        "were added without resizing.",
        cure="take the model's own tokenizer; after adding tokens model.resize_token_embeddings(len(tokenizer))",
        example="IndexError: index out of range in self",
        seen=_TORCH,
    ),
    "token_out_of_range_gpu": Signature(
        needle="srcIndex < srcSelectDimSize",
        cause="A token id is not below the size of the embedding: tokenizer and model do not belong together, or "
        "tokens "
        "were added without resizing.",
        cure="take the model's own tokenizer; after adding tokens model.resize_token_embeddings(len(tokenizer)); every "
        "later CUDA error of this process is of no meaning",
        example="../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [2,0,0], thread: "
        "[31,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
        seen="https://github.com/hiyouga/LlamaFactory/issues/3119",
    ),
    "label_out_of_range": Signature(
        needle="is out of bounds.",
        pattern=r"IndexError: Target (?P<label>-?\d+) is out of bounds",
        cause="The label <label> is not below the number of classes (or the size of the vocabulary).",
        cure="num_labels as many as there are labels, numbered from 0; padding of labels is -100",
        example="IndexError: Target 5 is out of bounds.",
        seen=_TORCH,
    ),
    "label_out_of_range_gpu": Signature(
        needle="< n_classes",
        pattern=r"Assertion `t >= 0 && t < n_classes` failed",
        cause="A label is not below the number of classes (or the size of the vocabulary), or is negative and "
        "not -100.",
        cure="num_labels as many as there are labels, numbered from 0; padding of labels is -100; the logits' last "
        "dimension is the vocabulary",
        example="nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < "
        "n_classes` failed.",
        seen="torch (CUDA builds, NLLLoss2d.cu)",
    ),
    "too_long_for_model": Signature(
        needle="Token indices sequence length is longer than",
        pattern=r"for this model \((?P<length>\d+) > (?P<limit>\d+)\)",
        cause="A row has <length> tokens before truncation, the model takes <limit>.",
        cure="nothing, if max_length cuts it later; else max_length: <limit>",
        kind="notice",
        example="[transformers] Token indices sequence length is longer than the specified maximum sequence length for "
        "this model (6 > 4). Running this sequence through the model will result in indexing errors",
        seen=_HF,
    ),
    "unequal_lengths": Signature(
        needle="Unable to create tensor, you should probably activate truncation",
        cause="Rows of different lengths reached a collator that does not pad, or a column holds lists in lists.",
        cure="a padding collator (DataCollatorForSeq2Seq pads labels too); remove columns that are no token lists",
        example="ValueError: Unable to create tensor, you should probably activate truncation and/or padding with "
        "'padding=True' 'truncation=True' to have batched tensors with the same length.",
        seen=_HF,
    ),
    "batch_sizes_differ": Signature(
        needle="to match target batch_size",
        pattern=r"Expected input batch_size \((?P<first>\d+)\) to match target batch_size \((?P<second>\d+)\)",
        cause="Logits and labels have different lengths (<first> and <second>): labels were padded or shifted "
        "otherwise "
        "than the inputs, or the head is of another task.",
        cure="labels as long as input_ids, for a language model; one label a row, for a classifier",
        example="ValueError: Expected input batch_size (3) to match target batch_size (4).",
        seen=_TORCH,
    ),
    "slow_tokenizer": Signature(
        needle="instantiate the backend tokenizer from one of",
        cause="The tokenizer's files could not be turned into a fast tokenizer: sentencepiece or tiktoken is "
        "missing, or "
        "tokenizer.json is.",
        cure="pip install sentencepiece tiktoken; download the tokenizer's files again",
        example="ValueError: Couldn't instantiate the backend tokenizer from one of:",
        seen="transformers 5.24 (tokenization_utils_tokenizers.py)",
    ),
    "no_assistant_mask": Signature(
        needle="using `assistant_only_loss=True`, but at least one example has no assistant",
        cause="assistant_only_loss needs a template with {% generation %} marks, and this one has none.",
        cure="hf-recipes sft finds the assistant's turns of any template; in TRL give a template with the marks",
        example="RuntimeError: You're using `assistant_only_loss=True`, but at least one example has no "
        "assistant tokens.",
        seen="trl 1.16 (trl/trainer/sft_trainer.py)",
    ),
}
