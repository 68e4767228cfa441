"""Fields of other engines' clients, which send them to chat and completions beside OpenAI's own.

Chat programs for llama.cpp, Ollama and vLLM send all their settings, most of them switched off.
What asks for nothing is taken; what would change the answer is refused, with the name it has here.
"""

from __future__ import annotations

from typing import Annotated

from cutaway.server.field_types import Body, Ignored, Refused

_NONE_HERE = "Cutaway has no such sampler."
_OFF = (0, 0.0)
_ONE = (1, 1.0)
_UNREAD = "Leave reasoning_content unread."
_TOLD_APART = "Reasoning is told apart, as reasoning_content."
_DRAWN = "Answers are drawn, not searched for."


def _form(name: str) -> Refused:
    return Refused(f'Send structured_outputs: {{"{name}": ...}}.', ("", {}, []))


class ForeignFields(Body):
    """What other engines name otherwise, or have alone."""

    # Hints to a scheduler or a cache, and notes: the answer is the same without.
    keep_alive: Ignored = None
    cache_prompt: Ignored = None
    id_slot: Ignored = None
    slot_id: Ignored = None
    priority: Ignored = None
    request_id: Ignored = None
    backend_sampling: Ignored = None
    timings_per_token: Ignored = None
    return_progress: Ignored = None
    cache_salt: Ignored = None
    legacy_api: Ignored = None
    thinking_budget: Ignored = None
    thinking_token_budget: Ignored = None
    stream_reasoning: Ignored = None
    # What else would stand in the reply.
    return_token_ids: Annotated[object, Refused("Send logprobs: true.", (False,))] = None
    post_sampling_probs: Annotated[object, Refused("Send logprobs: true.", (False,))] = None
    include_reasoning: Annotated[object, Refused(_UNREAD, (True,))] = None
    separate_reasoning: Annotated[object, Refused(_TOLD_APART, (True,))] = None
    reasoning_format: Annotated[object, Refused(_TOLD_APART, ("auto", "deepseek"))] = None
    # Other names.
    n_predict: Annotated[object, Refused("Send max_tokens.", (-1,))] = None
    num_predict: Annotated[object, Refused("Send max_tokens.", (-1,))] = None
    max_length: Annotated[object, Refused("Send max_tokens.")] = None
    stopping_strings: Annotated[object, Refused("Send stop.", ([],))] = None
    stop_sequence: Annotated[object, Refused("Send stop.", ([],))] = None
    max_new_tokens: Annotated[object, Refused("Send max_tokens.")] = None
    repeat_penalty: Annotated[object, Refused("Send repetition_penalty.", _ONE)] = None
    rep_pen: Annotated[object, Refused("Send repetition_penalty.", _ONE)] = None
    options: Annotated[
        object, Refused("Send temperature and the others beside model, as OpenAI has them.", ({},))
    ] = None
    format: Annotated[object, Refused("Send response_format.", ("",))] = None
    json_schema: Annotated[object, Refused("Send response_format.", ({},))] = None
    grammar: Annotated[object, _form("grammar")] = None
    grammar_string: Annotated[object, _form("grammar")] = None
    guided_json: Annotated[object, _form("json")] = None
    guided_regex: Annotated[object, _form("regex")] = None
    guided_choice: Annotated[object, _form("choice")] = None
    guided_grammar: Annotated[object, _form("grammar")] = None
    truncate_prompt_tokens: Annotated[object, Refused("Leave out what is old.")] = None
    spaces_between_special_tokens: Annotated[object, Refused("It is always true.", (True,))] = None
    bad_words: Annotated[object, Refused("Send logit_bias.", ([],))] = None
    allowed_token_ids: Annotated[object, Refused("Send structured_outputs.", ([],))] = None
    banned_tokens: Annotated[object, Refused("Send logit_bias.", ([], ""))] = None
    custom_token_bans: Annotated[object, Refused("Send logit_bias.", ([], ""))] = None
    ban_eos_token: Annotated[object, Refused("Send ignore_eos.", (False,))] = None
    do_sample: Annotated[object, Refused("Send temperature: 0.", (True,))] = None
    num_beams: Annotated[object, Refused(_DRAWN, (1,))] = None
    negative_prompt: Annotated[object, Refused("It steers by one prompt.", ("",))] = None
    guidance_scale: Annotated[object, Refused("It steers by one prompt.", _ONE)] = None
    # Samplers that are not here, at values that switch them off; what steers those does nothing.
    mirostat: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    mirostat_mode: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    mirostat_tau: Ignored = None
    mirostat_eta: Ignored = None
    dynatemp_range: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    dynatemp_exponent: Ignored = None
    dynamic_temperature: Annotated[object, Refused(_NONE_HERE, (False,))] = None
    dynatemp_low: Ignored = None
    dynatemp_high: Ignored = None
    smoothing_factor: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    smoothing_curve: Ignored = None
    epsilon_cutoff: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    eta_cutoff: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    encoder_repetition_penalty: Annotated[object, Refused(_NONE_HERE, _ONE)] = None
    no_repeat_ngram_size: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    penalty_alpha: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    skew: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    tfs: Annotated[object, Refused(_NONE_HERE, _ONE)] = None
    tfs_z: Annotated[object, Refused(_NONE_HERE, _ONE)] = None
    typical: Annotated[object, Refused(_NONE_HERE, _ONE)] = None
    typical_p: Annotated[object, Refused(_NONE_HERE, _ONE)] = None
    typ_p: Annotated[object, Refused(_NONE_HERE, _ONE)] = None
    xtc_probability: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    xtc_threshold: Ignored = None
    dry_multiplier: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    dry_base: Ignored = None
    dry_allowed_length: Ignored = None
    dry_penalty_last_n: Ignored = None
    dry_sequence_breakers: Ignored = None
    dry_range: Ignored = None
    nsigma: Annotated[object, Refused(_NONE_HERE, (*_OFF, -1, -1.0))] = None
    top_n_sigma: Annotated[object, Refused(_NONE_HERE, (*_OFF, -1, -1.0))] = None
    top_a: Annotated[object, Refused(_NONE_HERE, _OFF)] = None
    repeat_last_n: Ignored = None
    use_beam_search: Annotated[object, Refused(_DRAWN, (False,))] = None
    early_stopping: Annotated[object, Refused(_DRAWN, (False,))] = None
    length_penalty: Annotated[object, Refused(_DRAWN, _ONE)] = None
    best_of: Annotated[object, Refused("Ask for n answers and choose.", (1,))] = None
