"""Writing the files of tile configurations that vLLM and SGLang read, without a GPU."""
