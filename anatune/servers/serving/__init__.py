"""What a server of language models costs: times, memory and prices of its GPUs, without a device."""
