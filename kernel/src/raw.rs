//! The kernel's only unsafe code: software prefetch. A prefetch reads nothing into the program and can't fault, so
//! no value depends on it; the address is computed from a reference that is alive, within its bounds.
#![allow(unsafe_code)]

/// Asks the processor to fetch the cache line of `data[index]`; does nothing where the index is out of bounds.
#[inline(always)]
pub fn prefetch<T>(data: &[T], index: usize) {
    if let Some(item) = data.get(index) {
        let address = std::ptr::from_ref(item);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of every x86_64; prefetching never faults, and the address is that of a live item.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `prfm` is a hint that never faults and changes neither registers nor memory.
        unsafe {
            std::arch::asm!(
                "prfm pldl1keep, [{0}]",
                in(reg) address,
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    }
}
