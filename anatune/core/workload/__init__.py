"""What is computed: loop nests, how they are built, read and checked."""
