// What a torch without CUDA lacks to have tensors that say `cuda:0`: a guard of the device, and hooks that say it is there.
// Neither does anything: the numbers are on the CPU (imitation.py). It must be loaded before torch is imported, which asks for
// the hooks once.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::DeviceType;

const c10::Device device(DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

Guard guard;
c10::impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, &guard);

}  // namespace

namespace at {

struct ImitatedHooks final : CUDAHooksInterface {
  explicit ImitatedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  int getNumGPUs() const override { return 1; }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ImitatedHooks)

}  // namespace at
