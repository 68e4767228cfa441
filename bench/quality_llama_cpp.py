"""All logits of prompts by llama.cpp, for bench/quality.py: ids a line in, rows to a file."""

import sys

import numpy

if __name__ == "__main__" and len(sys.argv) == 3:
    import llama_cpp as api

    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, None)
    api.llama_backend_init()
    model = api.llama_model_load_from_file(sys.argv[1].encode(), api.llama_model_default_params())
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 1024, 512, 512
    context = api.llama_init_from_model(model, params)
    for line in sys.stdin:
        ids = [int(word) for word in line.split()]
        api.llama_memory_clear(api.llama_get_memory(context), True)
        batch = api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token_id in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token_id, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        assert api.llama_decode(context, batch) == 0
        rows = numpy.ctypeslib.as_array(api.llama_get_logits(context), (len(ids), size))
        rows.tofile(sys.argv[2])
        api.llama_batch_free(batch)
        print(size, flush=True)
