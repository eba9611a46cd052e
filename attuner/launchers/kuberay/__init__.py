"""The launcher `kuberay`: attempts as KubeRay RayJobs in one namespace, through the official client."""
