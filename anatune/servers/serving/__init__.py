"""Predictions of servers of language models: time per token, time to the first token, throughput and memory."""
