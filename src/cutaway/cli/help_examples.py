"""What one types first of each command: shown below its help, and on the page of commands."""

from __future__ import annotations

from collections.abc import Mapping

# By the words of the command; a group shows those of its commands.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "chat": ("cutaway chat", 'echo "What is gravity?" | cutaway chat smollm2 --temperature 0'),
    "complete": (
        'cutaway complete "Once upon a time" --seed 1 --max-tokens 16',
        'echo "What is gravity?" | cutaway complete --chat --temperature 0 --json',
    ),
    "view": (
        'cutaway view "What is gravity?" --chat',
        'cutaway view "What is gravity?" --chat --view attention --layer 12 --head 7',
    ),
    "why": (
        'cutaway why "What is gravity?" --chat',
        'cutaway why "Tell me a story" --chat --max-tokens 200 --json',
    ),
    "compare": (
        'cutaway compare "What is gravity?" --chat --change temperature=1.5',
        'cutaway compare "What is gravity?" --chat --change quant=int4-g64',
    ),
    "run": ("cutaway run smollm2",),
    "serve": (
        "cutaway serve smollm2",
        "cutaway serve smollm2 --port 8010 --replicas 2",
        "cutaway serve smollm2 --member tcp://10.0.0.2:7070 --link-key-file link.key",
    ),
    "member": ("cutaway member smollm2 --listen tcp://10.0.0.2:7070 --link-key-file link.key",),
    "rank": ("cutaway rank smollm2 --join tcp://10.0.0.1:7071 --rank 1 --link-key-file key",),
    "cluster up": ("cutaway cluster up cluster.toml",),
    "cluster status": ("cutaway cluster status --json",),
    "cluster scale": ("cutaway cluster scale 4",),
    "cluster roll": ("cutaway cluster roll",),
    "cluster down": ("cutaway cluster down",),
    "cluster manifest": ("cutaway cluster manifest cluster.toml > rayservice.yaml",),
    "tokenize": ('cutaway tokenize "Unbelievable"', "cutaway tokenize - --json < page.txt"),
    "detokenize": ("cutaway detokenize 504 2644 3290",),
    "doctor": ("cutaway doctor", "cutaway doctor --json"),
    "models ls": ("cutaway models ls",),
    "models info": ("cutaway models info smollm2", "cutaway models info ./my-model --json"),
    "models estimate": (
        "cutaway models estimate smollm2",
        "cutaway models estimate config.json --device H100 --batch 8 --context 8192",
    ),
    "models pull": ("cutaway models pull smollm2",),
    "models verify": ("cutaway models verify smollm2",),
    "models rm": ("cutaway models rm smollm2",),
    "models quantize": ("cutaway models quantize ./my-model --scheme int4-g64 --out ./my-model-4",),
    "config show": ("cutaway config show --origin",),
    "trace save": (
        'cutaway trace save "What is gravity?" gravity.cutaway --chat',
        "cutaway trace save Hello small.cutaway --views tokens,cost --redact",
    ),
    "trace open": (
        "cutaway trace open gravity.cutaway",
        "cutaway trace open gravity.cutaway --view lens",
    ),
    "trace diff": ("cutaway trace diff before.cutaway after.cutaway",),
    "trace export": (
        "cutaway trace export gravity.cutaway --html gravity.html",
        "cutaway trace export gravity.cutaway --to csv --output gravity.csv",
    ),
    "train lesson": ("cutaway train lesson", "cutaway train lesson until=ppo rewards=length"),
    "train bpe": ("cutaway train bpe bpe.toml",),
    "train pretrain": ("cutaway train pretrain pretrain.toml rate=3e-4",),
    "train sft": ("cutaway train sft sft.toml", "cutaway train sft sft.toml --show 3"),
    "train reward": ("cutaway train reward reward.toml",),
    "train dpo": ("cutaway train dpo dpo.toml lora_rank=8",),
    "train ppo": ("cutaway train ppo ppo.toml",),
    "train grpo": ("cutaway train grpo grpo.toml",),
    "train distill": ("cutaway train distill distill.toml",),
    "train speculator": ("cutaway train speculator speculator.toml",),
    "bench cpu": ("cutaway bench cpu", "cutaway bench cpu --models q4_1 --rounds 3 --only decode"),
    "bench latency": ("cutaway bench latency --model smollm2",),
    "bench throughput": ("cutaway bench throughput --model smollm2 --requests 64",),
    "bench serve": ("cutaway bench serve --rate 4", "cutaway bench serve --replicas 2"),
    "bench paper": ("cutaway bench paper --small",),
    "bench context": ("cutaway bench context --text book.txt",),
    "bench speculate": ("cutaway bench speculate --batch 1",),
}

# What other programs call a command, or what is often typed for it.
OTHER_NAMES: Mapping[str, str] = {
    **{name: "complete" for name in ("generate", "completion", "prompt", "ask", "infer")},
    **{name: "models pull" for name in ("pull", "download", "fetch", "get", "install")},
    **{name: "models ls" for name in ("list", "ls", "ps")},
    **{name: "models rm" for name in ("rm", "remove", "delete", "uninstall")},
    **{name: "models info" for name in ("show", "info", "inspect")},
    **{name: "models quantize" for name in ("quantize", "convert")},
    **{name: "serve" for name in ("server", "start", "api", "front")},
    **{name: "member" for name in ("worker", "replica", "engine")},
    **{name: "doctor" for name in ("env", "check", "collect-env", "diagnose")},
    **{name: "trace save" for name in ("save", "record")},
    **{name: "bench" for name in ("benchmark", "perf")},
    "version": "--version",
    "help": "--help",
    "models list": "models ls",
    **{f"models {name}": "models rm" for name in ("remove", "delete", "uninstall")},
    **{f"models {name}": "models pull" for name in ("download", "fetch", "get", "add", "install")},
    **{f"models {name}": "models info" for name in ("show", "inspect", "describe")},
    "models check": "models verify",
    "trace show": "trace open",
    "trace view": "trace open",
    "trace compare": "trace diff",
    "config list": "config show",
    "config get": "config show",
}


def below_help(path: str) -> str | None:
    """What stands under the help of a command or a group, or None."""
    lines = EXAMPLES.get(path)
    if lines is None:
        return None
    return "\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {each}" for each in lines)])
