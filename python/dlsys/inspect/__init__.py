"""Views of a plan: text of every stage, pictures, the loops and machine code of its kernels, and their times."""
