from fastshard.adapters import jax as jax
from fastshard.adapters import ray as ray
from fastshard.adapters import torch as torch
from fastshard.adapters import webshart as webshart
