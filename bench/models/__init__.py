"""The models by themselves: trained, fitted, and compared with what compilers and machines say."""
