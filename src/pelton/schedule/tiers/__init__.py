"""What the scheduler does with memory beside the blocks: preempted requests wait, evicted prefixes pass through."""
