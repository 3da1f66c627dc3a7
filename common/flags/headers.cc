// This source owns the precompiled headers of the programs.
