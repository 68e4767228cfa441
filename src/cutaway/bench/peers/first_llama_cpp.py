"""Answer one question with llama-cpp-python: the time of a process to its first token.

first_llama_cpp.py MODEL THREADS
"""

# pyright: basic

import sys

from llama_cpp import Llama

model = Llama(sys.argv[1], n_ctx=4096, n_threads=int(sys.argv[2]), verbose=False)
messages = [{"role": "user", "content": "What is gravity?"}]
print(model.create_chat_completion(messages, max_tokens=1, temperature=0)["choices"][0])
