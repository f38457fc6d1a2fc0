"""The files of tile configurations that vLLM and SGLang look for, written without a GPU."""
