"""Arguments and names that newer versions no longer have, and settings that contradict each other."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_HF = "transformers 5.24, provoked"
_TRL = "trl 1.16, provoked"
_UNEXPECTED = "got an unexpected keyword argument '"

SIGNATURES: dict[str, Signature] = {
    "evaluation_strategy": Signature(
        needle=f"{_UNEXPECTED}evaluation_strategy'",
        cause="transformers 4.46 and later call it eval_strategy.",
        cure="eval_strategy",
        example="TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
        seen=_HF,
    ),
    "warmup_ratio": Signature(
        needle=f"{_UNEXPECTED}warmup_ratio'",
        cause="transformers 5 has no warmup_ratio: warmup_steps takes a share too.",
        cure="warmup_steps: 0.03 (a number below 1 is a share of the steps)",
        example="TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'warmup_ratio'",
        seen=_HF,
    ),
    "overwrite_output_dir": Signature(
        needle=f"{_UNEXPECTED}overwrite_output_dir'",
        cause="transformers 5 has no overwrite_output_dir: a directory with checkpoints is written on.",
        cure="leave it out; give each run its own output_dir",
        example="TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'overwrite_output_dir'",
        seen=_HF,
    ),
    "tokenizer_argument": Signature(
        needle=f"{_UNEXPECTED}tokenizer'",
        cause="Trainers call it processing_class now.",
        cure="processing_class=tokenizer",
        example="TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'",
        seen=_HF,
    ),
    "trainer_data_arguments": Signature(
        needle=_UNEXPECTED,
        pattern=r"(SFT|DPO|KTO|Reward|GRPO|ORPO)Trainer\.__init__\(\) got an unexpected keyword argument "
        r"'(?P<name>max_seq_length|dataset_text_field|packing|dataset_num_proc|max_length|max_prompt_length|beta)'",
        cause="TRL moved <name> from the trainer into its config.",
        cure="SFTConfig(max_length=…, packing=…, dataset_text_field=…), given as args",
        example="TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'max_seq_length'",
        seen=_TRL,
    ),
    "max_seq_length": Signature(
        needle=f"Config.__init__() {_UNEXPECTED}max_seq_length'",
        cause="TRL's SFTConfig calls it max_length.",
        cure="max_length",
        example="TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'",
        seen=_TRL,
    ),
    "load_in_4bit": Signature(
        needle=_UNEXPECTED,
        pattern=r"unexpected keyword argument '(?P<name>load_in_[48]bit)'",
        cause="transformers 5 takes <name> only within a quantization_config.",
        cure="quantization_config=BitsAndBytesConfig(<name>=True); in a recipe method: qlora",
        example="TypeError: LlamaForCausalLM.__init__() got an unexpected keyword argument 'load_in_4bit'",
        seen=_HF,
    ),
    "unknown_argument": Signature(
        needle=_UNEXPECTED,
        pattern=r"(?P<where>\w*(Arguments|Config|Trainer|CausalLM))(\.__init__\(\))? got an unexpected keyword "
        r"argument "
        r"'(?!evaluation_strategy|warmup_ratio|overwrite_output_dir|tokenizer|max_seq_length|load_in_|dataset_text_field|"
        r"packing|dataset_num_proc|max_length|max_prompt_length|beta')(?P<name>\w+)'",
        cause="<where> of the installed version has no argument '<name>': it was renamed or removed, or is of another "
        "version.",
        cure="look it up for the installed versions (hf-recipes doctor shows them); in a recipe the nearest key "
        "is told",
        example="TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'no_cuda'",
        seen=_HF,
    ),
    "strategies_differ": Signature(
        needle="requires the save and eval strategy to match",
        cause="load_best_model_at_end needs a checkpoint at every evaluation.",
        cure="save_strategy equal to eval_strategy, and save_steps a multiple of eval_steps",
        example="ValueError: --load_best_model_at_end requires the save and eval strategy to match, except when "
        '--save_strategy="best", but found',
        seen=_HF,
    ),
    "unknown_flags": Signature(
        needle="are not used by the HfArgumentParser",
        pattern=r"not used by the HfArgumentParser: (?P<name>\[.*\])",
        cause="The command line holds flags that nothing takes: <name>.",
        cure="look at their spelling; they may be of another version",
        example="ValueError: Some specified arguments are not used by the HfArgumentParser: ['--learning_rat', '1']",
        seen=_HF,
    ),
    "removed_name": Signature(
        needle="cannot import name '",
        pattern=r"cannot import name '(?P<name>\w+)' from '(?P<package>transformers|trl|peft|accelerate|datasets|"
        r"huggingface_hub|bitsandbytes|deepspeed|torch)[\w.]*'",
        cause="The installed <package> has no <name>: it was removed or moved, or two packages do not fit each other.",
        cure="hf-recipes doctor shows versions and unmet requirements; install the versions that the script was "
        "written "
        "for, or update it",
        example="ImportError: cannot import name 'DataCollatorForCompletionOnlyLM' from 'trl' (…/trl/__init__.py)",
        seen=_TRL,
    ),
    "trainer_needs_accelerate": Signature(
        needle="with `PyTorch` requires `accelerate",
        pattern=r"requires `(?P<name>accelerate[^`]*)`",
        cause="The Trainer needs <name>, which is missing or too old.",
        cure="pip install -U accelerate",
        example="ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`: Please run `pip install "
        "transformers[torch]` or `pip install 'accelerate>=1.1.0'`",
        seen="transformers 5.24 (training_args.py)",
    ),
    "version_required": Signature(
        needle="is required for a normal functioning of this module",
        pattern=r"(?P<name>\S+) is required for a normal functioning of this module, but found (?P<found>\S+?)\.?$",
        cause="<name> is required, and <found> is installed.",
        cure='pip install "<name>"',
        example="ImportError: tokenizers>=0.23.1,<0.24.0 is required for a normal functioning of this module, "
        "but found "
        "tokenizers==0.19.1.",
        seen="transformers 5.24 (utils/versions.py)",
    ),
}
