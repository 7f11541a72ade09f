"""The admission webhook: sets the GPU variables of pods, validates claims, renews its certificates."""
