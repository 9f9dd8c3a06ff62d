//! The size of a Lustre file's stripes, from its layout (`lustre.lov`; lustre/include/uapi/linux/lustre/lustre_user.h:
//! `lov_user_md_v1`, `lov_user_md_v3`, `lov_comp_md_v1`). All numbers are of the host's order, as llite gives them.

/// The attribute that has it.
pub(crate) const LAYOUT_KEY: &std::ffi::CStr = c"lustre.lov";

const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const MAGIC_COMPOSITE_V1: u32 = 0x0BD6_0BD0;
/// Offset of `lmm_stripe_size` in a plain layout.
const STRIPE_SIZE_OFFSET: usize = 24;
/// Size of the head of a composite layout, and in its first entry the offset of `lcme_offset`.
const COMPOSITE_HEAD_SIZE: usize = 32;
const COMPONENT_OFFSET: usize = 24;

fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Bytes of a stripe; of a file in several components those of the first. Nothing where the layout is of another kind
/// or has no stripes.
pub(crate) fn stripe_size(layout: &[u8]) -> Option<u64> {
    let plain = match number(layout, 0)? {
        MAGIC_V1 | MAGIC_V3 => layout,
        MAGIC_COMPOSITE_V1 => {
            let offset = number(layout, COMPOSITE_HEAD_SIZE + COMPONENT_OFFSET)? as usize;
            let component = layout.get(offset..)?;
            matches!(number(component, 0)?, MAGIC_V1 | MAGIC_V3).then_some(component)?
        }
        _ => return None,
    };
    number(plain, STRIPE_SIZE_OFFSET).filter(|size| *size > 0).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(magic: u32, size: u32) -> Vec<u8> {
        let mut bytes = magic.to_ne_bytes().to_vec();
        bytes.extend([0; STRIPE_SIZE_OFFSET - 4]);
        bytes.extend(size.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    /// Goal: plain and composite layouts tell their stripes, and what is cut off or strange tells nothing.
    #[test]
    fn layouts_tell_their_stripes() {
        assert_eq!(stripe_size(&plain(MAGIC_V1, 1 << 20)), Some(1 << 20));
        assert_eq!(stripe_size(&plain(MAGIC_V3, 65536)), Some(65536));
        assert_eq!(stripe_size(&plain(MAGIC_V1, 0)), None);
        assert_eq!(stripe_size(&plain(0x1234, 65536)), None);
        let mut composite = MAGIC_COMPOSITE_V1.to_ne_bytes().to_vec();
        composite.resize(COMPOSITE_HEAD_SIZE + 48, 0);
        let at = COMPOSITE_HEAD_SIZE + COMPONENT_OFFSET;
        composite[at..at + 4].copy_from_slice(&((COMPOSITE_HEAD_SIZE + 48) as u32).to_ne_bytes());
        composite.extend(plain(MAGIC_V3, 4 << 20));
        assert_eq!(stripe_size(&composite), Some(4 << 20));
        for size in 0..composite.len() - 4 {
            assert_eq!(stripe_size(&composite[..size]), None, "{size}");
        }
        composite[at..at + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(stripe_size(&composite), None);
    }
}
