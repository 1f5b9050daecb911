"""Weights, checkpoints, adapters: what is read back."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_HF = "transformers 5.24, provoked"
_SAFE = "safetensors, provoked"
_PEFT = "peft 0.21, provoked"

SIGNATURES: dict[str, Signature] = {
    "safetensors_header": Signature(
        needle="Error while deserializing header",
        pattern=r"[Hh]eader ?([Tt]oo ?(large|[Ll]arge|small|[Ss]mall)|.*[Ii]nvalid)|header: (header "
        r"too|invalid|Invalid)",
        cause="A .safetensors file does not begin as one: it is a Git LFS pointer (a few lines of text), an HTML "
        "page, or "
        "half a download.",
        cure="look at its size (ls -l); git lfs pull, or download it again; hf-recipes verify names the file",
        example="safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        seen=_SAFE,
    ),
    "safetensors_cut": Signature(
        needle="Error while deserializing header",
        pattern=r"incomplete metadata|MetadataIncompleteBuffer|InvalidOffset",
        cause="A .safetensors file is cut short: a full disk or a broken download.",
        cure="download or save it again; for a checkpoint take the last that verifies (hf-recipes verify RUN)",
        example="SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        seen=_SAFE,
    ),
    "size_mismatch": Signature(
        needle="size mismatch for ",
        pattern=r"size mismatch for (?P<name>\S+): copying a param with shape "
        r"(?P<saved>torch\.Size\(\[(?!0\])[\d, ]+\]\)) "
        r"from checkpoint, the shape in current model is (?P<here>torch\.Size\(\[[\d, ]*\]\))",
        cause="<name> is saved as <saved>, and the model has <here>: another base, another rank (r), or a "
        "vocabulary that "
        "was enlarged before training.",
        cure="load the base that it was trained on; a larger vocabulary: model.resize_token_embeddings(len(tokenizer)) "
        "with the trained tokenizer, before the adapter",
        example="size mismatch for base_model.model.lm_head.weight: copying a param with shape "
        "torch.Size([32001, 4096]) "
        "from checkpoint, the shape in current model is torch.Size([32000, 4096]).",
        seen="torch 2.13, provoked",
    ),
    "size_mismatch_table": Signature(
        needle="Reinit due to size mismatch",
        pattern=r"(?P<name>[\w.{}\[\],. ]+?) *\| *MISMATCH *\|.*ckpt: (?P<saved>\S+ ?[\d, ]*\]\)) vs model:"
        r"(?P<here>torch\.Size\(\[[\d, ]*\]\))",
        cause="<name> is saved as <saved>, and the config says <here>.",
        cure="config.json and weights of one model (vocab_size as saved); another number of labels: a new head "
        "is meant, "
        "from_pretrained(…, ignore_mismatched_sizes=True)",
        example="model.embed_tokens.weight | MISMATCH | Reinit due to size mismatch - ckpt: torch.Size([512, 32]) vs "
        "model:torch.Size([700, 32])",
        seen=_HF,
    ),
    "refused_pickle": Signature(
        needle="Weights only load failed",
        cause="torch 2.6 and later load pickled files as data alone, and this one (a state of the random "
        "generators, an "
        "optimizer's) holds other objects.",
        cure="update transformers, which stores states that load; of a file that you trust yourself: "
        "torch.serialization.add_safe_globals with what the message names",
        example="_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you "
        "have two "
        "options, do those steps only if you trust the source of the checkpoint.",
        seen="torch 2.13, provoked",
    ),
    "torch_load_refused": Signature(
        needle="Due to a serious vulnerability issue in `torch.load`",
        cause="transformers loads .bin files only with torch 2.6 and later.",
        cure="pip install -U torch; or take the model's .safetensors",
        example="ValueError: Due to a serious vulnerability issue in `torch.load`, even with "
        "`weights_only=True`, we now "
        "require users to upgrade torch to at least v2.6 in order to use the function.",
        seen="transformers 5.24 (utils/import_utils.py)",
    ),
    "unknown_architecture": Signature(
        needle="does not recognize this architecture",
        pattern=r"has model type `(?P<name>[^`]+)`",
        cause="This version of transformers does not know the model type '<name>'.",
        cure="pip install -U transformers; a model with code of its own: trust_remote_code: true, once you have "
        "read it",
        example="ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does not "
        "recognize this architecture.",
        seen=_HF,
    ),
    "no_model_config": Signature(
        needle="nrecognized model in",
        cause="The directory has no config.json of a model (an adapter, a checkpoint that was cut short, a wrong "
        "path).",
        cure="give the model's directory; an adapter's directory holds adapter_config.json and needs its base",
        example="ValueError: Unrecognized model in runs/old. Should have a `model_type` key in its config.json.",
        seen=_HF,
    ),
    "no_config_file": Signature(
        needle="does not appear to have a file named",
        pattern=r"does not appear to have (a file|files) named (?P<name>\S+)",
        cause="The model's directory or repository has no <name>.",
        cure="look at the path; an adapter has no config.json: load its base and then the adapter",
        example="OSError: runs/old does not appear to have a file named config.json.",
        seen="transformers 5.24 (utils/hub.py)",
    ),
    "remote_code": Signature(
        needle="trust_remote_code=True",
        pattern=r"(contains custom code which must be executed|Please pass the argument `trust_remote_code=True`)",
        cause="The model comes with Python code of its own, which is not run unasked.",
        cure="read it, then trust_remote_code: true with a fixed model_revision",
        example="ValueError: The repository nobody/model contains custom code which must be executed to "
        "correctly load the "
        "model. … Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
        seen="transformers 5.24 (dynamic_module_utils.py)",
    ),
    "target_modules": Signature(
        needle="not found in the base model. Please check the target modules",
        pattern=r"Target modules (?P<name>.+?) not found in the base model",
        cause="The adapter's target modules, <name>, are not in this model.",
        cure="lora_target_modules: all-linear, or names of this model (print(model)); GPT-2: c_attn, Falcon: "
        "query_key_value",
        example="peft.utils.error.NoMatchingPeftModuleError: Target modules {'query_key_value'} not found in the base "
        "model. Please check the target modules and try again.",
        seen=_PEFT,
    ),
    "no_adapter_config": Signature(
        needle="Can't find 'adapter_config.json'",
        cause="The directory is no adapter: a merged or full model, a checkpoint without one, or a wrong path.",
        cure="give the directory that holds adapter_config.json; a full model is loaded without PEFT",
        example="ValueError: Can't find 'adapter_config.json' at 'runs/old'",
        seen=_PEFT,
    ),
    "nothing_to_resume": Signature(
        needle=("No valid checkpoint found", "Can't find a valid checkpoint"),
        pattern=r"(No valid checkpoint found in output directory|Can't find a valid checkpoint at)",
        cause="There is no checkpoint to resume from at that place.",
        cure="give the checkpoint (resume_from_checkpoint: runs/old/checkpoint-500) or the same output_dir; hf-recipes "
        "verify RUN says which are whole",
        example="ValueError: No valid checkpoint found in output directory (runs/old)",
        seen=_HF,
    ),
}
