"""anatune on measurements that others recorded: how it ranks, prunes and searches them. No device is needed."""
